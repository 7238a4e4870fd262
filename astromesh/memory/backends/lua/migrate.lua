-- Renames sessions of versions in whose ids the principal was no part. ARGV: prefix, cursor. Returns the next cursor, '0' at
-- the end. It repeats harmlessly: a renamed session is left as it is.
local prefix, cursor = unpack(ARGV)
local start, RS = prefix .. ':s:', '\30'
local found = redis.call('SCAN', cursor, 'MATCH', start .. '*', 'COUNT', 500)
for _, hash in ipairs(found[2]) do
    local id = string.sub(hash, #start + 1)
    local tenant, agent, session = string.match(id, '^(.-)\31(.-)\31(.*)$')
    local owner, index = unpack(redis.call('HMGET', hash, 'owner', 'index'))
    if session and owner and string.sub(hash, 1, #start) == start and not string.find(session, RS, 1, true) then
        local named = session .. RS .. owner
        local new = tenant .. US .. agent .. US .. named
        local turns, all, expiry = prefix .. ':t:' .. id, prefix .. ':a:' .. tenant .. US .. agent, prefix .. ':x'
        redis.call('RENAME', hash, start .. new)
        if redis.call('EXISTS', turns) == 1 then
            redis.call('RENAME', turns, prefix .. ':t:' .. new)
        end
        redis.call('ZREM', all, session)
        redis.call('ZADD', all, 0, named)
        redis.call('ZREM', index, agent .. US .. session)
        redis.call('ZADD', index, 0, agent .. US .. named)
        local ends = redis.call('ZSCORE', expiry, id)
        if ends then
            redis.call('ZREM', expiry, id)
            redis.call('ZADD', expiry, ends, new)
        end
    end
end
if found[1] == '0' then
    redis.call('SET', prefix .. ':version', 2)
end
return found[1]
