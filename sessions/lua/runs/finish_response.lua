-- Ends a run, with exactly one winner: last entries, message, usage, `message.updated`, the next in the queue. A stored
-- stop allows the status `cancelled` alone, with what that stop said: it was promised to whoever sent it. PEXPIRE comes
-- first: with it the script may go on when memory is full.
-- KEYS m msg log r e tok q runs ids tree share
-- ok offset sequence_number next_rid uid now repeated queue_is_due hidden | cancelled seen by reason
-- ended status reason sequence_number engine text_length fence | lost fence owner | gap sequence_number num_tokens
-- gone
read_args({
  'channel', 'response_id', 'fence',
  'first', -- the number of the first entry
  'status', 'reason', 'engine', 'message_id', 'body', 'text_length', 'input_tokens', 'output_tokens', 'keep_ms',
  'updated_event',
  'token_ids', -- bytes
  'token_ids_to_keep', -- with the message, or ''
  'log_entries', 'log_ms', 'idle_ms',
  'seen', -- of the stop that it ends with, or ''
  'published_end', -- response.done as it is published, or '' = as it is stored
  'pauses', -- 1: what waits in the queue is not to begin by itself; or ''
  'next_round', -- what follows by itself, unless another answer waits for this one; or ''
  'place', -- which engine has the session's keys and values by now; or '' = nobody knows
}, {
  'fields', -- names and values
  'entries', -- the last is response.done
})
local m, msg, log, r, e, tok, q, runs, ids, tree, share = unpack(KEYS)
local rid, keep_ms = args.response_id, args.keep_ms
local fence, status, sequence_number, cancel, uid = unpack(redis.call('HMGET', r, 'fence', 'status', 'sequence_number',
  'cancel', 'uid'))
if not fence then return {'gone'} end
local first = tonumber(args.first)
local last = first + #args.entries - 1
if not is_live(status) then
  if fence == args.fence and status == args.status and tonumber(sequence_number) == last then
    local offset, done_at, next_rid = unpack(redis.call('HMGET', r, 'done_offset', 'done_at', 'next'))
    local due = has_queue(m) and 1 or 0
    return {'ok', tonumber(offset), last, next_rid, uid, tonumber(done_at), 1, due, redis.call('HGET', m, 'hidden') or ''} -- our own end, the reply was lost
  end
  return ended(r)
end
if fence ~= args.fence then return {'lost', tonumber(fence), redis.call('HGET', r, 'owner')} end
if first ~= sequence_number + 1 then
  return {'gap', tonumber(sequence_number), tonumber(redis.call('HGET', r, 'num_tokens'))}
end
if cancel == '1' then
  local seen, by, why = unpack(redis.call('HMGET', r, 'seen_sequence_number', 'cancel_by', 'cancel_reason'))
  if args.status ~= 'cancelled' or args.reason ~= why or args.seen ~= (seen or '') then
    return {'cancelled', seen or '', by or '', why or ''}
  end
end

local active, epoch, input_tokens, output_tokens = unpack(redis.call('HMGET', m, 'active_response_id', 'epoch',
  'input_tokens', 'output_tokens'))
if not epoch then return {'gone'} end -- nothing of a session is re-created half
input_tokens, output_tokens = grown(input_tokens, args.input_tokens), grown(output_tokens, args.output_tokens)

drop_uncounted(e, tonumber(sequence_number))

local now = now_ms()
redis.call('PEXPIRE', r, keep_ms)
for place, entry in ipairs(args.entries) do
  redis.call('XADD', e, (first + place - 1) .. '-0', 'd', entry)
end
redis.call('PEXPIRE', e, keep_ms)
if args.token_ids ~= '' then
  redis.call('APPEND', tok, args.token_ids)
  redis.call('HINCRBY', r, 'num_tokens', #args.token_ids / 4)
end
redis.call('PEXPIRE', tok, keep_ms)
redis.call('ZADD', runs, now + keep_ms, rid)
redis.call('ZREMRANGEBYSCORE', runs, '-inf', now)

local next_rid = ''
if active == rid then
  next_rid = redis.call('LPOP', q) or ''
  redis.call('HSET', m, 'active_response_id', next_rid)
else
  redis.call('LREM', q, 0, rid)
end
if args.next_round ~= '' and active == rid and next_rid == '' then
  redis.call('HSET', m, 'next_round', args.next_round)
end
put_message(m, msg, args.message_id, args.body)
if args.token_ids_to_keep ~= '' then redis.call('HSET', ids, args.message_id, args.token_ids_to_keep) end
if args.place ~= '' then redis.call('HSET', m, 'place', args.place) end
redis.call('HSET', m, 'updated_at', now, 'input_tokens', input_tokens, 'output_tokens', output_tokens)
local offset = log_event(m, log, args.updated_event, args.log_entries, args.log_ms)
redis.call('HSET', r, 'status', args.status, 'reason', args.reason, 'engine', args.engine, 'sequence_number', last,
  'text_length', args.text_length, 'done_at', now, 'done_offset', offset, 'next', next_rid, unpack(args.fields))
if redis.call('HGET', m, 'active_response_id') == '' then let_go(args.idle_ms, {m, msg, q, runs, ids, tree, share}) end
if args.published_end ~= '' then args.entries[#args.entries] = args.published_end end
publish_response(rid, args.fence, first, last, table.concat(args.entries, '\n'))
local lines, newest = args.updated_event, offset
local has_more = has_queue(m)
if has_more and active == rid and args.pauses ~= '' and redis.call('HGET', m, 'queue_paused') ~= '1' then
  redis.call('HSET', m, 'queue_paused', 1)
  local event = new_queue_event(m)
  newest = log_event(m, log, event, args.log_entries, args.log_ms)
  lines = lines .. '\n' .. event
end
publish_session(epoch, newest, lines)
return {'ok', offset, last, next_rid, uid, now, 0, has_more and 1 or 0, redis.call('HGET', m, 'hidden') or ''}
