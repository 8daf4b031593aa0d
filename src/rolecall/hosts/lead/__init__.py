"""Our own Lead, the agent that plays `lead` in the workflow of that name: Rolecall itself is the host."""
