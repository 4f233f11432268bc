"""Workers: handlers for the messages of queues, many at a time."""
