"""Small tools around a forward pass: sites, recording, rebuilding, comparing."""
