-- Makes a session once. The id is derived from user and key, so a repeat meets its own session.
-- KEYS m log x
-- ARGV 1 pub 2 live 3 uid 4 epoch 5 event 6 log_entries 7 log_ms 8.. field pairs
-- ok | replayed | not_found (somebody else's) | deleted (within the tombstone's life)
if redis.call('EXISTS', KEYS[3]) == 1 then return {'deleted'} end
local m = redis.call('HMGET', KEYS[1], 'uid', 'epoch')
if m[1] then
  if m[1] ~= ARGV[3] then return {'not_found'} end
  if m[2] == ARGV[4] then return {'ok'} end -- our own epoch: the first reply was lost
  return {'replayed'}
end
local now = now_ms()
redis.call('HSET', KEYS[1], 'uid', ARGV[3], 'epoch', ARGV[4], 'offset', 0, 'revision', 1, 'created_at', now,
  'updated_at', now, 'message_count', 0, 'input_tokens', 0, 'output_tokens', 0, 'head', '',
  'active_response_id', '', 'locked', '', 'pinned', 0, unpack(ARGV, 8))
local offset = log_event(KEYS[1], KEYS[2], ARGV[5], ARGV[6], ARGV[7])
publish_session(ARGV[4], offset, ARGV[5])
return {'ok'}
