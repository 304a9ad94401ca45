# A thin front: tools/setup installs what is missing, CMake and Ninja build, CTest runs.
#   make          build the command and the library (release)
#   make demo     the main job on real weights
#   make test     all tests
#   make test-engines   real loaders of inference engines: installs them (3 GB)
BUILD ?= build/release
JOBS  ?= $(shell nproc)

.PHONY: all setup configure build command demo python-env test test-engines bench install clean
.NOTPARALLEL:
all: build

setup:
	@tools/setup

configure: setup
	@test -f $(BUILD)/build.ninja || { echo "== configure ($(BUILD))"; cmake --preset release -B $(BUILD) >/dev/null; }

build: configure
	@echo "== build ($(BUILD)), with tests and benchmarks"
	@ninja -C $(BUILD) -j$(JOBS)

command: configure
	@echo "== build the command ($(BUILD))"
	@ninja -C $(BUILD) -j$(JOBS) heft_cli

demo: command
	@tools/demo/run $(BUILD)

python-env: setup
	@tools/python_env

test: python-env build
	@echo "== test"
	@tools/run_tests $(BUILD)

test-engines: python-env configure
	@tools/setup --engines
	@ninja -C $(BUILD) -j$(JOBS) heft_python heft_cli
	@tools/engines_env
	@tools/test_engines $(BUILD)

bench: command
	@$(BUILD)/src/cli/heft bench

install: build
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

clean:
	rm -rf build
