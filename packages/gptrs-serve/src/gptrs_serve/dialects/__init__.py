"""The protocols of other services, each translated to a chat of this server and back."""
