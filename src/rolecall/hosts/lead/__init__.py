"""Our own Lead, the agent that plays the role `lead` in the workflow `lead`: Rolecall itself is the host."""
