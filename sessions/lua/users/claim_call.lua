-- Says which call answers an idempotency key where no answer is stored, unless another one does.
-- KEYS call:k:NAME
-- ok | taken body replica call_id
read_args({
  'body',
  'replica',
  'call_id',
  'instead_of', -- the call that is known to be lost, '' = none
  'life_ms',
})
local body, replica, call_id = unpack(redis.call('HMGET', KEYS[1], 'body', 'replica', 'call_id'))
if call_id and call_id ~= args.call_id and call_id ~= args.instead_of then
  return {'taken', body, replica, call_id}
end
redis.call('HSET', KEYS[1], 'body', args.body, 'replica', args.replica, 'call_id', args.call_id)
redis.call('PEXPIRE', KEYS[1], args.life_ms)
return {'ok'}
