heft_add_test(prop_exec SOURCES prop/prop_exec.c support/ref_known.c support/ref_reshard.c LABELS prop)
heft_add_test(prop_convert SOURCES prop/prop_convert.c support/ref_known.c support/ref_reshard.c LABELS prop)
heft_add_test(prop_routes SOURCES prop/prop_routes.c support/ref_known.c support/ref_reshard.c support/route_fleet.c LABELS prop)
heft_add_test(prop_balance SOURCES prop/prop_balance.c support/ref_known.c support/ref_reshard.c LABELS prop)
