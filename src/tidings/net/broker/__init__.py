"""The broker process: one node driven by asyncio, with a journal on disk."""
