"""Who answers the agents' questions: the expert rules, or a language model that falls back to them."""
