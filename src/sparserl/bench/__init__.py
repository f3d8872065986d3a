"""Measuring on purpose: the reference search over recipes, races against cuSPARSE, tables and pages from records."""
