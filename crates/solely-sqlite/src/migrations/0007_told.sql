-- Nothing: here every write is a statement of its own. The number is that of the other engine.
SELECT 1;
