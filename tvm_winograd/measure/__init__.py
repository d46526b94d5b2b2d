"""How anything is timed: events, a cold L2, builds ahead, rows with their conditions."""
