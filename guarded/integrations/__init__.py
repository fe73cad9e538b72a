"""One module for each framework, and what they share: for HTTP clients in `_client`, for servers in `_server`, for task
queues in `_queue`. A module here is imported by its user, who has the framework installed; nothing else imports one.
"""
