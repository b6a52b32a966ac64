"""The command line's rooms. A task parses, selects hosts, calls one function, prints."""
