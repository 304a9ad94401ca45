# A thin front: tools/setup installs what is missing, CMake and Ninja build, CTest runs.
#   make          build the command and the library (release)
#   make demo     the main job on real weights
#   make test     all tests
BUILD ?= build/release
JOBS  ?= $(shell nproc)

.PHONY: all setup build demo test bench install clean
all: build

setup:
	@tools/setup

build: setup
	@echo "== build ($(BUILD))"
	@test -f $(BUILD)/build.ninja || cmake --preset release -B $(BUILD)
	@ninja -C $(BUILD) -j$(JOBS)

demo: build
	@tools/demo/run $(BUILD)

test: build
	@echo "== test"
	@tools/run_tests $(BUILD)

bench: build
	@$(BUILD)/src/cli/heft bench

install: build
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

clean:
	rm -rf build
