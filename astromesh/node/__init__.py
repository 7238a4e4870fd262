"""The node runner and what every unit of work shares: the run's scope, its ledger, model and tool calls.

Graph engine and workflow engine are two traversers over this; it knows neither GraphState nor Task.
"""
