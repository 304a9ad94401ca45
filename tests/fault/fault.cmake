heft_add_test(test_fleet_faults SOURCES fault/test_fleet_faults.c fault/node.c LIBS heft_fleet_support
  LABELS "sync;fault" TIMEOUT 180)
