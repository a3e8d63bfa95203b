"""Spans of requests for a collector of OpenTelemetry. Nothing here is imported while it is off."""
