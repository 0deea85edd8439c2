"""llama.cpp's server, from the package xllamacpp or as the settings name it."""
