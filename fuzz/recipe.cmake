heft_add_fuzz(recipe_text)
heft_add_fuzz(bindings_json)
