heft_add_fuzz(links_json)
