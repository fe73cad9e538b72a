"""What each kind of policy asks of a store: its words, and the protocol of its face."""
