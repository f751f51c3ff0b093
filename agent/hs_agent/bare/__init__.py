"""What the small processes beside the agent are made of: standard library only, and little of it."""
