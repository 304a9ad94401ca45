# Others that move bytes, for bench/peers/compare.py: each where its library is there.
find_package(PkgConfig QUIET)
pkg_check_modules(PEER_UCX QUIET IMPORTED_TARGET ucx)
pkg_check_modules(PEER_FABRIC QUIET IMPORTED_TARGET libfabric)
find_package(Threads REQUIRED)

function(heft_add_peer name)
  add_executable(bench_peer_${name} peers/peer.c peers/peer_${name}.c)
  target_link_libraries(bench_peer_${name} PRIVATE heft_flags ${ARGN})
endfunction()

heft_add_peer(tcp Threads::Threads)
if(TARGET PkgConfig::PEER_UCX)
  heft_add_peer(ucp PkgConfig::PEER_UCX)
endif()
if(TARGET PkgConfig::PEER_FABRIC)
  heft_add_peer(fabric PkgConfig::PEER_FABRIC)
endif()
