"""Translations between the protocols clients and engines speak. Pure: bytes or JSON in, bytes or JSON out.

Modules are named for what comes in and what goes out: ``messages_to_chat`` makes an OpenAI Chat request of an
Anthropic Messages request, ``chat_to_message`` makes a Message of the chat completion that answers it, and
``chat_to_message_events`` does so while it streams. A request in the protocol its engine speaks passes through
none of them.
"""
