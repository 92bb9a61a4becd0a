"""Tools in chats: the families of calls, their grammar, the reader of answers with calls."""
