"""The pattern `reasoning`: the controller of `astromesh.graph.reasoning` inside a run of the pipeline."""
