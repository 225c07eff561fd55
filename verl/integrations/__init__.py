"""Callbacks and loggers for other training libraries, each a file that imports the library it is for."""
