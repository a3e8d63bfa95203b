-- Makes a session once. The id is derived from user and key, so a repeat meets its own session.
-- KEYS m log x msg tree ids runs q share copy
-- ARGV 1 pub 2 live 3 uid 4 epoch 5 event 6 log_entries 7 log_ms 8 idle_ms 9 the call that has written its messages
--      ('' = it begins empty) 10 how many 11.. field pairs
-- ok | replayed | not_found (somebody else's) | deleted (within the tombstone's life) | incomplete
if redis.call('EXISTS', KEYS[3]) == 1 then return {'deleted'} end
local m = redis.call('HMGET', KEYS[1], 'uid', 'epoch')
if m[1] then
  if m[1] ~= ARGV[3] then return {'not_found'} end
  if m[2] == ARGV[4] then return {'ok'} end -- our own epoch: the first reply was lost
  return {'replayed'}
end
if ARGV[9] ~= '' and (redis.call('GET', KEYS[10]) ~= ARGV[9] or redis.call('LLEN', KEYS[5]) ~= tonumber(ARGV[10])) then
  return {'incomplete'}
end
-- First what a full memory refuses: a script that has written goes on to its end.
local now = now_ms()
redis.call('HSET', KEYS[1], 'uid', ARGV[3], 'epoch', ARGV[4], 'offset', 0, 'revision', 1, 'revision_offset', 1,
  'created_at', now, 'updated_at', now, 'message_count', 0, 'bytes', 0, 'input_tokens', 0, 'output_tokens', 0,
  'server', server_id(), 'head', '', 'active_response_id', '', 'locked', '', 'pinned', 0, unpack(ARGV, 11))
-- What is left of a session of this id that has expired: its log stays longest, and takes no number twice.
redis.call('UNLINK', KEYS[2], KEYS[7], KEYS[8], KEYS[9])
if ARGV[9] == '' then redis.call('UNLINK', KEYS[4], KEYS[5], KEYS[6]) end
local offset = log_event(KEYS[1], KEYS[2], ARGV[5], ARGV[6], ARGV[7])
for place = 4, 6 do redis.call('PERSIST', KEYS[place]) end
redis.call('UNLINK', KEYS[10])
let_go(ARGV[8], {KEYS[1], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]})
publish_session(ARGV[4], offset, ARGV[5])
return {'ok'}
