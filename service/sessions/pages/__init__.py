"""The pages of a session, a file per page: route, view, form."""
