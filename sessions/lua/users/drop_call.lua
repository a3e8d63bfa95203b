-- Frees an idempotency key whose call has no answer, unless another call has it by now.
-- KEYS call:k:NAME
-- ok
read_args({'call_id'})
if redis.call('HGET', KEYS[1], 'call_id') == args.call_id then redis.call('UNLINK', KEYS[1]) end
return {'ok'}
