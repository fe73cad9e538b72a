"""A shop that knows nothing of guarded."""
