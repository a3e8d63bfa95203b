"""Share links: conversations that anybody may read who has the link."""
