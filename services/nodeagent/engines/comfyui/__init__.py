"""ComfyUI, where the settings name its program."""
