"""The files of a workflow's folder `workflows/NAME/` (document 004, section 4), as records.

`astromesh.config.workflow.load.read_folder` reads them; `files` says which there are.
"""
