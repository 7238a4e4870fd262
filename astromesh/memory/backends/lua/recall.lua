-- The end of a session. KEYS: session, turns. ARGV: limit, now.
local owner, ends, summary, upto = unpack(redis.call('HMGET', KEYS[1], 'owner', 'expires', 'summary', 'upto'))
if not owner or over(ends, ARGV[2]) then
    return false
end
local turns = {}
if tonumber(ARGV[1]) > 0 then
    turns = redis.call('LRANGE', KEYS[2], '-' .. ARGV[1], -1)
end
return {owner, redis.call('LLEN', KEYS[2]), summary, upto, turns}
