"""The knowledge base by REST and as pages."""
