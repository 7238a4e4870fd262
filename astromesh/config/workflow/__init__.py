"""The files of a workflow's folder `workflows/NAME/` (document 004, section 4), as records.

`astromesh.config.workflow.folder` lists the files and reads them.
"""
