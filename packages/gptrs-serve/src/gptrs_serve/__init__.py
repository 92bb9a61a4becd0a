"""`gptrs serve`: models over HTTP, as the clients of OpenAI expect."""
