"""What a streaming job keeps between batches: the batch log and the versions of subscriptions."""
