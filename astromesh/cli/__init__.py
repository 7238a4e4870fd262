"""The command line (api.md section 5). Each command's module is imported when it is called."""
