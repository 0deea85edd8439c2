"""Prompts, and answers that are asked for, beyond a model's context."""

from __future__ import annotations

from .faults import Fault


class ContextExceeded(Fault):
    """The prompt, or the prompt and the answer that is asked for, are longer than the context.

    Figures are tokens, None where they are not known. Anthropic's clients look for the words, and ask for a shorter
    answer when the prompt alone would fit; OpenAI's look for the code.
    """

    def __init__(
        self,
        engine_message: str,
        param: str | None,
        prompt: int | None = None,
        answer: int | None = None,
        window: int | None = None,
    ) -> None:
        reason = engine_message.strip().rstrip(".")
        message = f"The prompt is too long{f': {reason}' if reason else ''}. Send less, or ask for fewer tokens."
        super().__init__(400, "context_length_exceeded", message, param=param)
        self.prompt: int | None = None
        self.answer: int | None = None
        self.window: int | None = None
        self.about(prompt, answer, window)

    def about(self, prompt: int | None, answer: int | None, window: int | None) -> None:
        """Give the figures, in tokens, that were not known before; the message says them where it can."""
        self.prompt, self.answer, self.window = prompt, answer, window
        if prompt is None or window is None:
            return
        if prompt >= window:
            self.message = f"prompt is too long: {prompt} tokens > {window} maximum"
        elif answer is not None:
            self.message = (
                f"input length and `max_tokens` exceed context limit: {prompt} + {answer} > {window}, decrease input "
                "length or `max_tokens` and try again"
            )
