"""Where events can go; each module has one `install` that gives a `Subscription`."""
