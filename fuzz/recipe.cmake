heft_add_fuzz(recipe_text)
heft_add_fuzz(bindings_json)
heft_add_fuzz(cache_map)
heft_add_fuzz(expert_table)
