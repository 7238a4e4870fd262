"""The files of a workflow's folder `workflows/NAME/`, as records.

`astromesh.config.workflow.folder` lists the files and reads them.
"""
