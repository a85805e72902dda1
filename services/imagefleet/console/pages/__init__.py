"""The pages, one file a noun, each with a template of its name; a page looks, and `Visit` shows."""
