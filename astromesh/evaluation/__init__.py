"""Evaluates agents and workflows: datasets of cases, checks of outcomes, reports, and their comparison."""
