-- Makes a session once. The id is derived from user and key, so a repeat meets its own session.
-- KEYS m log x msg tree ids runs q share copy
-- ok | replayed | not_found (somebody else's) | deleted (within the tombstone's life) | incomplete
read_args({
  'channel', 'uid', 'epoch', 'event', 'log_entries', 'log_ms', 'idle_ms',
  'writer', -- the call that has written its messages; '' = it begins empty
  'num_messages', -- that it has written
}, {
  'fields', -- names and values
})
local m, log, x, msg, tree, ids, runs, q, share, copy = unpack(KEYS)
if redis.call('EXISTS', x) == 1 then return {'deleted'} end
local uid, epoch = unpack(redis.call('HMGET', m, 'uid', 'epoch'))
if uid then
  if uid ~= args.uid then return {'not_found'} end
  if epoch == args.epoch then return {'ok'} end -- our own epoch: the first reply was lost
  return {'replayed'}
end
local is_copy = args.writer ~= ''
if is_copy and (redis.call('GET', copy) ~= args.writer or redis.call('LLEN', tree) ~= tonumber(args.num_messages)) then
  return {'incomplete'}
end
-- First what a full memory refuses: a script that has written goes on to its end.
local now = now_ms()
redis.call('HSET', m, 'uid', args.uid, 'epoch', args.epoch, 'offset', 0, 'revision', 1, 'revision_offset', 1,
  'created_at', now, 'updated_at', now, 'message_count', 0, 'bytes', 0, 'input_tokens', 0, 'output_tokens', 0,
  'server', server_id(), 'head', '', 'active_response_id', '', 'locked', '', 'pinned', 0, unpack(args.fields))
-- What is left of a session of this id that has expired: its log stays longest, and takes no number twice.
redis.call('UNLINK', log, runs, q, share)
if not is_copy then redis.call('UNLINK', msg, tree, ids) end
local offset = log_event(m, log, args.event, args.log_entries, args.log_ms)
for _, key in ipairs({msg, tree, ids}) do redis.call('PERSIST', key) end
redis.call('UNLINK', copy)
let_go(args.idle_ms, {m, msg, tree, ids, runs, q, share})
publish_session(args.epoch, offset, args.event)
return {'ok'}
