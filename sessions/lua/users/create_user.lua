-- Makes a user once: the id is derived from an idempotency key, so a repeat meets its own user. A token enters the
-- user's list with its user, so that the list has none of a try that went no further.
-- KEYS u:{uid}:p i t
-- ok | replayed digests (of tokens before this one) | reused | ended (the token before) | not_found (removed since)
read_args({
  'call_id',
  'content', -- a digest of what was asked for
  'digest', -- of the token that the asker is given
  'score', -- of that token in the list: when it expires
  'now', -- by the clock that has set this
  'life_ms',
}, {
  'fields', -- names and values
})
local p, i, t = unpack(KEYS)
local call_id, content, digest, before = unpack(redis.call('HMGET', i, 'call', 'content', 'digest', 'before'))
local is_there = redis.call('EXISTS', p) == 1
if not content then
  if is_there then return {'reused'} end -- its key has been forgotten
  redis.call('HSET', i, 'call', args.call_id, 'content', args.content, 'digest', args.digest, 'before', '')
  redis.call('PEXPIRE', i, args.life_ms)
  redis.call('HSET', p, unpack(args.fields))
  redis.call('ZADD', t, args.score, args.digest)
  return {'ok'}
end
if content ~= args.content then return {'reused'} end
if not is_there then return {'not_found'} end
if call_id ~= args.call_id then -- else the reply was lost
  local expires_at = redis.call('ZSCORE', t, digest)
  if not expires_at or tonumber(expires_at) <= tonumber(args.now) then return {'ended'} end
  local left = {digest}
  for older in string.gmatch(before, '%S+') do -- of repeats that came no further
    if redis.call('ZSCORE', t, older) then left[#left + 1] = older end
  end
  before = table.concat(left, ' ')
  redis.call('HSET', i, 'call', args.call_id, 'digest', args.digest, 'before', before)
  redis.call('ZADD', t, args.score, args.digest)
end
if before == '' then return {'ok'} end
return {'replayed', before}
